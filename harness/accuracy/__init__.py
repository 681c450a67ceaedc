"""Accuracy over epochs: the same questions, asked again and again of one running model, scored by
lm-eval.
"""
