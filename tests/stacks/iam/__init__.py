"""The roles' actions in AWS, read from the code; the rights they need, and the rights that policies allow."""
