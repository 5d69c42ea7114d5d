"""The one door to boto3: sessions, clients, pages, waiting."""
