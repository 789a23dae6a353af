"""A goal split over files, each part worked on at once, the answers merged into one."""
