"""A released model as one file for other programs: ONNX, torch.export."""
