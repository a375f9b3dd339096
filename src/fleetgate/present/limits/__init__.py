"""What is learned about the limits of providers: the explanation and the history."""
