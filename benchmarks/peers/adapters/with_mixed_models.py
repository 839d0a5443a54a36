"""Mixed models by mixedlm-rs and statsmodels, whose predictions (BLUPs) are turned into a policy by hand.

Each action has a model of its own, as a covariance of all coefficients of all actions takes too long to fit.
"""

import numpy as np
from by_hand import Coded, intercept
from contract import Log, best_offered, run

try:
    from mixedlm_rs import MixedLM
except ImportError:
    from statsmodels.regression.mixed_linear_model import MixedLM


class Blup:
    """A model of each action: fixed effects of the contexts, and a deviation of each task from them."""

    codes_actions = True

    def fit(self, log: Log) -> None:
        self.actions, self.tasks, phi = log.actions, Coded(log.task), intercept(log.x)
        code, p = self.tasks.codes(log.task), phi.shape[1]
        self.coef = np.empty((self.actions.size, self.tasks.known.size + 1, p))
        for k, action in enumerate(self.actions.tolist()):
            rows = log.action == action
            fit = MixedLM(log.reward[rows], phi[rows], groups=code[rows], exog_re=phi[rows]).fit(reml=True)
            self.coef[k] = np.asarray(fit.fe_params)  # the last row is that of new tasks
            for task, effect in fit.random_effects.items():
                self.coef[k, int(task)] += np.asarray(effect)

    def scores(self, requests: Log) -> np.ndarray:
        coef = self.coef[:, self.tasks.codes(requests.task)]
        return np.einsum("np,knp->nk", intercept(requests.x), coef)

    def choose(self, requests: Log) -> np.ndarray:
        return self.actions[self.scores(requests).argmax(axis=1)]


class BlupMovies:
    """One model on the features of actions, and a deviation of each task from it."""

    def fit(self, log: Log) -> None:
        self.tasks, phi = Coded(log.task), log.features[log.action]
        code = self.tasks.codes(log.task)
        fit = MixedLM(log.reward, phi, groups=code, exog_re=phi).fit(reml=True)
        self.coef = np.tile(np.asarray(fit.fe_params), (self.tasks.known.size + 1, 1))
        for task, effect in fit.random_effects.items():
            self.coef[int(task)] += np.asarray(effect)

    def choose(self, requests: Log) -> np.ndarray:
        coef = self.coef[self.tasks.codes(requests.task)]
        scores = np.einsum("nkp,np->nk", requests.features[requests.offered], coef)
        return best_offered(requests.offered, scores)


if __name__ == "__main__":
    names = ("mixedlm-rs, BLUPs by hand", "statsmodels MixedLM, BLUPs by hand")
    run(dict.fromkeys(names, Blup), dict.fromkeys(names, BlupMovies))
