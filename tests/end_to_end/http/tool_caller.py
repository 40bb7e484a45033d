"""SmolLM2 made to call tools in the form of Hermes and Qwen, for tests of clients that read calls."""
import json
import shutil

import safetensors.torch

# SmolLM2's template with calls of tools, as Qwen's has them.
TEMPLATE = """\
{% for message in messages %}{% if loop.first and message.role != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + message.role + '
' + (message.content or '') }}{% for call in message.tool_calls or [] %}{{ '<tool_call>
{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}
</tool_call>' }}{% endfor %}{{ '<|im_end|>
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""


def make(model, folder):
    """A copy of SmolLM2 with <tool_call> and </tool_call> as tokens. They take the places of two tokens of source code that
    conversations do not have, with the embeddings of the words START and END, so that the model can copy them."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    embedding, vocabulary = tensors["model.embed_tokens.weight"], tokenizer["model"]["vocab"]
    for old, new, word in (("<reponame>", "<tool_call>", "START"), ("<file_sep>", "</tool_call>", "END")):
        place = vocabulary[new] = vocabulary.pop(old)
        tokenizer["added_tokens"][place].update(content=new, special=False)
        embedding[[place, vocabulary[word]]] = embedding[[vocabulary[word], place]]
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder
