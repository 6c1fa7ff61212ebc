"""Scores of the 57 Atari games, HNS and SABER, and statistics over runs."""

from dicerl.scores.reference import SYSTEM_TITLES, SYSTEMS, hns, reference_scores, saber, summary

__all__ = ["SYSTEMS", "SYSTEM_TITLES", "hns", "reference_scores", "saber", "summary"]
