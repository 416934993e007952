"""Which allocation of an elastic artifact is meant, and making an artifact or a published size of it."""

from slimformer.inference.extraction.calibration import calibration_loss
from slimformer.inference.extraction.choosing import Choice, look_up_elastic
from slimformer.inference.extraction.extracting import Extraction, extract, publish

__all__ = ["Choice", "Extraction", "calibration_loss", "extract", "look_up_elastic", "publish"]
