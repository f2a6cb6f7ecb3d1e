"""The web page of a run: try an image, label the images the model is least sure of, follow the metrics."""
