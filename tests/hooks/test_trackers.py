import pytest

from hooks import EverySteps, MlflowHook, WandbHook

PARAMS = {"rate": 0.1, "layers": [8, 1]}
DUE = [(3, 6.0, 0.25), (6, 12.0, 0.5), (9, 18.0, 0.75)]  # step, loss, accuracy


@pytest.fixture
def train(make_view, make_context):
    """Runs ten steps of a training with a hook, from `start`; or only until it fails."""

    def train(hook, start=0, fails=False, is_chief=True):
        def view(before, step):
            steps = range(before + 1, step + 1)
            return make_view(
                before,
                step,
                losses=[2.0 * at for at in steps],
                metrics={"accuracy": [at / 12 for at in steps]},
            )

        hook.begin(make_context(step=start, is_chief=is_chief))
        hook.after_loop(view(start, start + 4))
        hook.after_loop(view(start + 4, start + 10))
        hook.on_error(ValueError()) if fails else hook.end(view(start + 10, start + 10))

    return train


class FakeRun:
    """What WandbHook calls of a run, written down."""

    def __init__(self):
        self.defined, self.logged = [], []
        self.config = {}

    def define_metric(self, name, step_metric=None):
        self.defined.append((name, step_metric))

    def log(self, values):
        self.logged.append(values)


class TestWandbHook:
    @pytest.mark.parametrize("fails", [False, True])
    def test_it_logs_the_due_steps_with_their_numbers_however_the_run_ends(self, train, fails):
        run = FakeRun()
        train(WandbHook(run, EverySteps(3)), fails=fails)
        assert run.logged == [
            {"loss": loss, "accuracy": accuracy, "global_step": step}
            for step, loss, accuracy in DUE
        ]
        assert ("*", "global_step") in run.defined

    def test_a_resumed_run_goes_on_at_its_step(self, train):
        run = FakeRun()
        hook = WandbHook(run, EverySteps(5))
        train(hook)
        train(hook, start=10)
        assert [values["global_step"] for values in run.logged] == [5, 10, 15, 20]

    def test_another_process_than_the_chief_needs_no_run(self, train, make_view):
        train(WandbHook(None, EverySteps(3)), is_chief=False)
        assert make_view.reads == []

    def test_what_is_no_run_is_refused_with_what_to_pass(self, make_context):
        with pytest.raises(TypeError, match=r"run must be what wandb.init.* got NoneType"):
            WandbHook(None, EverySteps(3)).begin(make_context())

    def test_the_real_library_keeps_what_it_is_given(self, train, tmp_path):
        wandb = pytest.importorskip("wandb")
        settings = wandb.Settings(silent=True, console="off", disable_git=True)
        run = wandb.init(mode="offline", dir=str(tmp_path), settings=settings)
        try:
            train(WandbHook(run, EverySteps(3), PARAMS))
            summary, config = dict(run.summary), dict(run.config)
            run.finish()
        finally:
            wandb.teardown()
        assert (summary["loss"], summary["accuracy"], summary["global_step"]) == (18.0, 0.75, 9)
        assert config == PARAMS
        assert list(tmp_path.rglob("*.wandb"))


class TestMlflowHook:
    @pytest.fixture
    def client(self, tmp_path, monkeypatch):
        mlflow = pytest.importorskip("mlflow")
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        return mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())

    @pytest.fixture
    def run_id(self, client):
        return client.create_run(client.create_experiment("digits")).info.run_id

    @pytest.mark.parametrize("fails", [False, True])
    def test_the_real_library_keeps_what_it_is_given(self, train, client, run_id, fails):
        hook = MlflowHook(run_id, EverySteps(3), PARAMS, client=client, clock=lambda: 12.5)
        train(hook, fails=fails)

        for index, name in enumerate(["loss", "accuracy"], start=1):
            history = client.get_metric_history(run_id, name)
            assert [(one.step, one.value) for one in history] == [
                (due[0], due[index]) for due in DUE
            ]
            assert {one.timestamp for one in history} == {12500}
        assert client.get_run(run_id).data.params == {"rate": "0.1", "layers": "[8, 1]"}

    def test_without_a_client_the_tracking_uri_says_where(self, train, client, run_id, tmp_path):
        import mlflow

        before = mlflow.get_tracking_uri()
        mlflow.set_tracking_uri(tmp_path.as_uri())
        try:
            train(MlflowHook(run_id, EverySteps(3)))
        finally:
            mlflow.set_tracking_uri(before)
        assert len(client.get_metric_history(run_id, "loss")) == 3

    def test_another_process_than_the_chief_logs_nothing(self, train, make_view):
        train(MlflowHook("id", EverySteps(3), PARAMS, client=object()), is_chief=False)
        assert make_view.reads == []

    def test_what_is_no_id_is_refused_with_what_to_pass(self):
        with pytest.raises(TypeError, match=r"run.info.run_id, got object"):
            MlflowHook(object(), EverySteps(3))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "hook", [WandbHook(FakeRun(), EverySteps(1)), MlflowHook("a", EverySteps(1))]
)
@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_they_are_for_training_only(make_context, hook, mode):
    with pytest.raises(ValueError, match=rf"{type(hook).__name__}.*training.*{mode}.*train\(\)"):
        hook.begin(make_context(mode=mode))


@pytest.mark.parametrize("make", [lambda e: WandbHook(FakeRun(), e), lambda e: MlflowHook("a", e)])
@pytest.mark.parametrize("every", [None, 100])
def test_what_is_no_period_is_refused(make, every):
    with pytest.raises(TypeError, match=f"got {every}"):
        make(every)
