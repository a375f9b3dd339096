"""What belongs to a provider account: credentials, login files, and questions about usage."""
