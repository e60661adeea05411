"""Many runs on engines."""
