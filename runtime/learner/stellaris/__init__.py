"""Stellaris: several learner functions compute gradients in parallel, and a parameter function applies them."""
