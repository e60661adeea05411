"""What is measured, copied to where people already look: TensorBoard, MLflow."""
