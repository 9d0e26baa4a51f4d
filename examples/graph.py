"""Prune a graph network of PyTorch Geometric: Cora, papers that cite each other, 90 % of the weights gone.

    FADEOUT_DATA=folder python examples/graph.py     # folder/cora has cora.content and cora.cites

Needs torch_geometric. Takes about half a minute on a CPU. `fadeout data get cora` downloads the data.
"""

import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_undirected

import fadeout

STEPS = 400

folder = Path(os.environ["FADEOUT_DATA"], "cora")
papers = [line.split() for line in (folder / "cora.content").read_text().splitlines()]
numbers = {paper[0]: number for number, paper in enumerate(papers)}
fields = sorted({paper[-1] for paper in papers})
cites = [line.split() for line in (folder / "cora.cites").read_text().splitlines()]
edges = torch.tensor([[numbers[cited], numbers[citing]] for cited, citing in cites]).T
words = torch.tensor([[float(word) for word in paper[1:-1]] for paper in papers])
labels = torch.tensor([fields.index(paper[-1]) for paper in papers])
data = Data(x=words / words.sum(1, keepdim=True), edge_index=to_undirected(edges), y=labels)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GCNConv(data.num_features, 16)
        self.second = GCNConv(16, len(fields))

    def forward(self, data):
        hidden = F.relu(self.first(data.x, data.edge_index))
        return self.second(F.dropout(hidden, training=self.training), data.edge_index)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
pruner = fadeout.SelectiveWeightDecay(model, optimizer, sparsity=0.9, steps=STEPS)

for _ in range(STEPS):
    model.train()
    optimizer.zero_grad()
    F.cross_entropy(model(data)[:140], labels[:140]).backward()
    optimizer.step()


@torch.no_grad()
def accuracy():
    model.eval()
    return (model(data)[500:1500].argmax(1) == labels[500:1500]).float().mean()


before = accuracy()
masks = pruner.remove()
print(f"{before:.1%} right before removal, {accuracy():.1%} after it: {masks}")
