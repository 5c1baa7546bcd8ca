"""One model for many devices at many precisions."""
