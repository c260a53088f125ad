"""Worker of caption.py: upstream's loop over one image at a time, run by upstream's own Python.

    PYTHON benchmarks/janus_upstream.py CHECKOUT MODEL DTYPE DEVICE

CHECKOUT is a clone of deepseek-ai/Janus (its package does not import on transformers 5; 4.48 works). The loop
is that of its inference.py with Janus-Pro's role names. Reads a job a line on stdin, answers a line on
stdout. Imports nothing of noukii.
"""

import contextlib
import json
import os
import sys
import time


def main():
    checkout, folder, dtype, device = sys.argv[1:5]
    sys.path.insert(0, checkout)
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    with contextlib.redirect_stdout(sys.stderr):  # the package greets on stdout
        import torch
        from janus.models import MultiModalityCausalLM, VLChatProcessor  # noqa: F401 - registers the model
        from janus.utils.io import load_pil_images
        from transformers import AutoModelForCausalLM, __version__

        kind = getattr(torch, dtype)
        processor = VLChatProcessor.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, torch_dtype=kind)
        model = model.to(device).eval()
    tokenizer = processor.tokenizer

    def describe(path, tokens, question):
        conversation = [
            {"role": "<|User|>", "content": f"<image_placeholder>\n{question}", "images": [path]},
            {"role": "<|Assistant|>", "content": ""},
        ]
        inputs = processor(
            conversations=conversation, images=load_pil_images(conversation), force_batchify=True
        ).to(model.device, dtype=kind)
        embeddings = model.prepare_inputs_embeds(**inputs)
        answer = model.language_model.generate(
            inputs_embeds=embeddings,
            attention_mask=inputs.attention_mask,
            pad_token_id=tokenizer.eos_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            max_new_tokens=tokens,
            do_sample=False,
            use_cache=True,
        )
        ids = answer[0].cpu().tolist()
        return tokenizer.decode(ids, skip_special_tokens=True), len(ids), inputs.input_ids.shape[1]

    def tell(value):
        print(json.dumps(value), flush=True)

    tell({"torch": torch.__version__, "transformers": __version__, "threads": torch.get_num_threads()})
    with torch.inference_mode():
        for line in sys.stdin:
            job = json.loads(line)
            began = time.perf_counter()
            found = [describe(path, job["tokens"], job["question"]) for path in job["images"]]
            seconds = time.perf_counter() - began
            texts, counts, prompts = zip(*found, strict=True)
            tell({"seconds": seconds, "texts": texts, "tokens": counts, "prompt": prompts[0]})


if __name__ == "__main__":
    main()
