from train_distributed.ledger.ledger import Ledger as Ledger
from train_distributed.one_shot.model import Release as Release
from train_distributed.one_shot.release import release as release
from train_distributed.privacy.promise import Privacy as Privacy
from train_distributed.released.classifier import PrivateClassifier as PrivateClassifier

from . import accounting as accounting
from . import partition as partition

__version__: str
