"""The papers that this project implements: their figures and claims, measured on its engine."""
