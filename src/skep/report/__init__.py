"""Records become pictures, and pictures one HTML file that opens offline."""
