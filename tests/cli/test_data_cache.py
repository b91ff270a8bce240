"""Sample orders that a Megatron run cached: files written here by NumPy, from an own implementation of the documented semantics, are taken over."""

import unittest

import numpy as np

from octet_cli import CONFIG, DATA, OK, Sandbox, build_tokens, octet, steps

SEQ, GLOBAL, SEED = 32, 4, 7


def lengths_of(prefix):
    raw = prefix.with_suffix(".idx").read_bytes()
    return np.frombuffer(raw, np.int32, int(np.frombuffer(raw, np.uint64, 1, 18)[0]), 34).tolist()


def split_of(lengths, share=0.9):
    return int(round(share * len(lengths)))  # Python's round, half to even


def gpt_index(lengths, samples, seed=SEED, epochs=None):
    """Document, sample and shuffle index as ECOSYSTEM.md 1.2 states them."""
    total = sum(lengths)
    epochs = epochs or next(e for e in range(1, 10**6) if samples is None or e * total >= samples * SEQ + 1)
    sans, separate = 0, False
    if epochs > 1:
        sans = ((epochs - 1) * total - 1) // SEQ
        separate = samples - sans < int(0.80 * ((total - 1) // SEQ))
    random = np.random.RandomState(seed)

    def shuffled(repeat):
        documents = np.tile(np.arange(len(lengths), dtype=np.int32), repeat)
        random.shuffle(documents)
        return documents

    documents = np.concatenate([shuffled(epochs - 1), shuffled(1)]) if separate else shuffled(epochs)
    windows = (epochs * total - 1) // SEQ
    ends = np.cumsum([lengths[d] for d in documents])
    starts = [(0, 0)]
    for w in range(1, windows + 1):
        place = int(np.searchsorted(ends, w * SEQ, side="right"))
        starts.append((place, w * SEQ - int(ends[place] - lengths[documents[place]])))
    shuffle = np.arange(windows, dtype=np.uint32)
    if separate:
        random.shuffle(shuffle[:sans])
        random.shuffle(shuffle[sans:])
    else:
        random.shuffle(shuffle)
    return documents, np.array(starts, dtype=np.int32), shuffle


def write_cache(prefix, index):
    for name, array in zip(("document", "sample", "shuffle"), index):
        np.save(f"{prefix}-{name}_index.npy", array)
    return str(prefix)


def write_blend(prefix, weights, samples):
    taken, sources, numbers = [0] * len(weights), [], []
    for i in range(samples):
        errors = [w * max(float(i), 1.0) - t for w, t in zip(weights, taken)]
        k = errors.index(max(errors))
        sources.append(k)
        numbers.append(taken[k])
        taken[k] += 1
    np.save(f"{prefix}-dataset_index.npy", np.array(sources, dtype=np.int16))
    np.save(f"{prefix}-dataset_sample_index.npy", np.array(numbers, dtype=np.int64))
    return str(prefix)


def hashes(run):
    return [s["sample_hash"] for s in steps(run).values()]


class Caches(Sandbox):
    words = 900

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.small = build_tokens(cls.class_folder, 300, "small")

    def source(self, prefix, samples, name, **index):
        lengths = lengths_of(prefix)
        return {"path": str(prefix), "index_cache": write_cache(self.folder / f"{name}-GPTDataset-train", gpt_index(lengths[:split_of(lengths)], samples, **index))}

    def test_equals_ours_when_the_configuration_is_the_same(self):
        for count in (5, 40, 90):   # one epoch, and several with the last one shuffled with the others or apart
            with self.subTest(steps=count):
                short = {"run": {"steps": count}, "batch": {"micro": 4, "global": GLOBAL}}
                ours = self.train(f"ours{count}", **short)
                theirs = self.train(f"theirs{count}", data={"train": [self.source(self.prefix, count * GLOBAL, f"c{count}")]}, **short)
                self.assertEqual(hashes(ours), hashes(theirs))
                self.assert_same_training(ours, theirs, count)

    def test_another_order_is_taken_over(self):
        ours = self.train("ours")
        theirs = self.train("theirs", data={"train": [self.source(self.prefix, 32, "other", seed=99)]})
        self.assertNotEqual(hashes(ours), hashes(theirs))
        same = self.train("same", data={"seed": 99})
        self.assertEqual(hashes(same), hashes(theirs))

    def test_blend(self):
        weights, samples = [0.7, 0.3], 8 * GLOBAL
        built = [int(np.ceil(np.ceil(samples * w) * 1.005)) for w in weights]
        sources = [self.source(p, n, f"s{k}") for k, (p, n) in enumerate(zip((self.prefix, self.small), built))]
        plain = [{"path": s["path"], "weight": w} for s, w in zip(sources, weights)]
        ours = self.train("ours", data={"train": plain})
        cache = write_blend(self.folder / "b-BlendedDataset-train", weights, samples)
        theirs = self.train("theirs", data={"train": sources, "blend_cache": cache})
        self.assertEqual(hashes(ours), hashes(theirs))
        mixed = self.train("mixed", data={"train": [plain[0] | {"index_cache": sources[0]["index_cache"]}, plain[1]], "blend_cache": cache})
        self.assertEqual(hashes(ours), hashes(mixed))
        # A longer run than the blend was made for.
        arguments = ["--config", self.config(data={"train": plain, "blend_cache": cache}, run={"steps": 9})]
        self.assert_refused(DATA, "data.blend_cache", "has 32 samples, the run needs 36: 4 are missing", arguments=arguments)

    def test_resume_needs_the_same_cache(self):
        data = {"train": [self.source(self.prefix, 80, "a")]}
        run = self.train("run", data=data, run={"steps": 4})
        other = {"train": [self.source(self.prefix, 80, "b", seed=5)]}
        for changed in (other, {"train": [{"path": str(self.prefix)}]}):
            result = octet("train", "--config", self.config(data=changed, run={"steps": 8}), "--run-dir", run, "--resume", "must")
            self.assert_one_line(result, CONFIG, "data.train.0.index_cache", "--allow-config-change data.train")
        result = octet("train", "--config", self.config(data=data, run={"steps": 8}), "--run-dir", run, "--resume", "must")
        self.assertEqual(result.rc, OK, result)
        straight = self.train("straight", data=data, run={"steps": 8})
        self.assertEqual(hashes(run), hashes(straight))

    def test_wrong_caches_are_refused(self):
        lengths = lengths_of(self.prefix)
        train = lengths[:split_of(lengths)]
        good = gpt_index(train, None)

        def refuse(*fragments, steps=8, **arrays):
            index = [arrays.get(name, array) for name, array in zip(("document", "sample", "shuffle"), good)]
            source = {"path": str(self.prefix), "index_cache": write_cache(self.folder / "w-GPTDataset-train", index)}
            self.assert_refused(DATA, *fragments, arguments=["--config", self.config(data={"train": [source]}, run={"steps": steps})])

        refuse("document_index.npy", "no multiple", document=good[0][:-1])
        refuse("document_index.npy", "type", document=good[0].astype(np.float32))
        refuse("document_index.npy", "outside the split", document=np.where(good[0] == 0, len(train), good[0]).astype(np.int32))
        refuse("sample_index.npy", "begins elsewhere", sample=good[1] + np.array([0, 1], dtype=np.int32))
        refuse("shuffle_index.npy", "there twice", shuffle=np.zeros_like(good[2]))
        refuse("shuffle_index.npy", "has", shuffle=good[2][:-1])
        refuse("document_index.npy", "C order", document=np.asfortranarray(np.stack([good[0], good[0]])))
        refuse("are missing", steps=1000)
        arguments = ["--config", self.config(data={"train": [{"path": str(self.prefix), "index_cache": str(self.folder / "none")}]})]
        self.assert_refused(DATA, "none-document_index.npy", arguments=arguments)


if __name__ == "__main__":
    unittest.main()
