"""Distillation into a student of any shape."""

from slimformer.methods.distill.student import StudentShape, build_student, copy_weights, source_blocks, student_config

__all__ = ["StudentShape", "build_student", "copy_weights", "source_blocks", "student_config"]
