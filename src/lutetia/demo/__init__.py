"""`lutetia demo`: everything once on a laptop's CPU: train, generate, explain, build, and one report of it all."""

from lutetia.demo.telling import run

__all__ = ["run"]
