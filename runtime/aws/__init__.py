"""The one door to boto3: clients, what their calls end with, questions to the account, and stacks."""
