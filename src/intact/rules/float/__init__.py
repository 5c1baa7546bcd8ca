"""Float to float: the same function in fewer and friendlier operators."""
