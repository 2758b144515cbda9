"""Text for the terminal: verdict, live view, runs, log diagnosis."""
