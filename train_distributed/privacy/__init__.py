"""From a promise to noise on integers: promises, guarantees, fixed point, discrete Gaussian."""
