"""The demonstration: train a small GPT on real text, kill it in several ways, prove the resume bit-exact."""
