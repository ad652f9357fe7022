"""An array as a model: what merges make of it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpwa.data.array_model import ArrayModel, array_layout
from dpwa.data.snapshot import MergeTerms

shares = st.floats(0.0, 1.0)


@given(shares, st.none() | shares)
def test_merging_matches_the_formula(factor, delta):
    own, published, peer = np.array([[5.0, -1.0], [1.0, 2.0], [7.0, 7.0]])
    model = ArrayModel(own.copy(), array_layout(own))
    terms = MergeTerms(factor)
    if delta is not None:
        terms = MergeTerms(factor, published.view(np.uint8), delta=delta)
    distance = model.merge(0, peer.view(np.uint8), terms)
    kept = delta or 0.0
    expected = own + factor * (peer - kept * published - (1.0 - kept) * own)
    np.testing.assert_allclose(model.array, expected, rtol=1e-12)
    assert distance == np.linalg.norm(peer - (own if delta is None else published))
