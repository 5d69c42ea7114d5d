"""What roles do in AWS, read from the code; what that needs, and what policies allow."""
