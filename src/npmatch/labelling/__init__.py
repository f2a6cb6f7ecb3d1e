"""Which images to label next, and the labels back from tables and Label Studio."""
