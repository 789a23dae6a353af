"""What skep keeps: runs, their requests and how they ended, in one SQLite file."""
