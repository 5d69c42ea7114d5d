"""Stellaris: several learner functions compute gradients at the same time, and a parameter function applies them."""
