"""Float model in, QDQ model out: plan, observe, resolve, insert."""
