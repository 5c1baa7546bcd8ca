"""What a grid is: encodings, the limits of types, from values to integers and back."""
