"""Progress line, TensorBoard, run summary and learning curve."""
