"""What one does with a released model: files, probabilities, metrics, predictions, exports."""
