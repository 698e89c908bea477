from train_distributed.privacy.guarantee import Guarantee as Guarantee
from train_distributed.privacy.promise import Privacy as Privacy
