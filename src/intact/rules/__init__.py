"""Rules: friendlier operators for float models, forms of quantized ones, and the proof of their claims."""
