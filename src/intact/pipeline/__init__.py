"""The order of the stages, and the verdict about their result: nothing else knows it."""
