import contextvars
import threading

import torch

from headatlas.interp.attach import attach
from headatlas.interp.errors import InputError

from .edits import logits, zero_head


class TestThreads:
    def test_each_sees_its_own(self, tiny):
        model = tiny("llama")
        own = logits(model)
        expected = {}
        for head in (0, 1):
            with attach(model, edits=[zero_head("z", head)]):
                expected[head] = logits(model)
        results, counts, errors = {}, {}, []
        barrier = threading.Barrier(3, timeout=60)

        def work(name, edits):
            try:
                mine = []
                with attach(model, observers=[mine.append], edits=edits):
                    barrier.wait()
                    outputs = [logits(model) for _ in range(10)]
                    barrier.wait()
                results[name], counts[name] = outputs, len(mine)
            except Exception as error:
                errors.append(error)
                barrier.abort()

        threads = [threading.Thread(target=work, args=(h, [zero_head("z", h)])) for h in (0, 1)]
        threads.append(threading.Thread(target=work, args=("plain", [])))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert counts == {0: 20, 1: 20, "plain": 20}
        for head in (0, 1):
            assert all(torch.equal(out, expected[head]) for out in results[head])
        assert all(torch.allclose(out, own, atol=1e-4) for out in results["plain"])
        assert model.config._attn_implementation == "sdpa"

    @staticmethod
    def elsewhere(work):
        """What `work` returns or raises in a thread of its own."""
        results = []

        def run():
            try:
                results.append(work())
            except Exception as error:
                results.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
        return results[0]

    def test_a_thread_without_a_block_is_refused(self, tiny):
        model, calls = tiny("llama"), []
        own = logits(model)
        with attach(model, observers=[calls.append]):
            error = self.elsewhere(lambda: logits(model))
        assert isinstance(error, InputError)
        assert "contextvars.copy_context().run" in str(error)
        assert calls == []
        torch.testing.assert_close(self.elsewhere(lambda: logits(model)), own)

    def test_a_thread_can_take_the_block_along(self, tiny):
        model, calls = tiny("llama"), []
        with attach(model, edits=[zero_head("z", 0)], observers=[calls.append]):
            edited = logits(model)
            context = contextvars.copy_context()
            seen = self.elsewhere(lambda: context.run(logits, model))
        assert torch.equal(seen, edited)
        assert len(calls) == 4

    def test_a_thread_can_attach_for_the_plain_model(self, tiny):
        model, calls = tiny("llama"), []
        own = logits(model)

        def plain():
            with attach(model):
                return logits(model)

        with attach(model, edits=[zero_head("z", 0)], observers=[calls.append]):
            seen = self.elsewhere(plain)
            other = self.elsewhere(lambda: logits(tiny("llama")))
        torch.testing.assert_close(seen, own)
        torch.testing.assert_close(other, own)
        assert calls == []

    def test_nothing_is_lost_where_nobody_watches(self, tiny):
        model = tiny("llama")
        own = logits(model)
        with attach(model):
            torch.testing.assert_close(self.elsewhere(lambda: logits(model)), own)
