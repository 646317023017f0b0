"""Names, did-you-mean, module:attr and plug-ins."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from flowalign import registry
from flowalign.errors import ConfigError
from flowalign.samplers import FlowSDE

ALL = [value for value in vars(registry).values() if isinstance(value, registry.Registry)]


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.kind)
def test_every_entry_imports_and_says_what_it_is(table):
    for entry in table.entries():
        assert callable(table.get(entry.name))
        assert entry.summary and not entry.summary.endswith(".")


def test_register_adds_a_name_once():
    table = registry.Registry("sampler", "flowalign.nothing")
    target = "flowalign.samplers:FlowSDE"
    table.register(registry.Entry("mine", target, summary="mine", aliases=("my",)))
    assert table.names() == ["mine"] and table.get("my") is table.get("mine") is FlowSDE
    for entry in (
        registry.Entry("mine", target, summary="again"),
        registry.Entry("other", target, summary="again", aliases=("my",)),
    ):
        with pytest.raises(ValueError, match="is taken"):
            table.register(entry)
    assert table.names() == ["mine"]


def test_an_alias_is_the_entry():
    assert registry.MODELS.get("StableDiffusion3Pipeline") is registry.MODELS.get("sd3")


def test_an_unlike_name_gets_the_choices_alone():
    with pytest.raises(ConfigError, match=r"^unknown penalty 'zzz' \(available: kl"):
        registry.PENALTIES.get("zzz")


def test_a_misspelt_name_gets_the_nearest():
    with pytest.raises(ConfigError, match="unknown sampler 'flow_sdee'; did you mean 'flow_sde'"):
        registry.SAMPLERS.get("flow_sdee")


def test_a_misspelt_option_gets_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'noise'"):
        registry.SAMPLERS.build("flow_sde", nois=0.5)


def test_a_refused_value_names_the_entry():
    with pytest.raises(ConfigError, match="sampler flow_sde: noise must be >= 0"):
        registry.SAMPLERS.build("flow_sde", noise=-1)


def test_module_attr_works_wherever_a_name_does():
    assert registry.SAMPLERS.get("flowalign.samplers.flow_sde:FlowSDE") is FlowSDE
    assert registry.SAMPLERS.build("flowalign.samplers:FlowSDE", noise=0.1) == FlowSDE(noise=0.1)
    with pytest.raises(ConfigError, match="cannot be imported"):
        registry.SAMPLERS.get("no_such_module:Thing")
    with pytest.raises(ConfigError, match="cannot be imported"):
        registry.SAMPLERS.get("flowalign.samplers:Nothing")


def test_entry_points_of_other_packages(monkeypatch):
    table = registry.Registry("sampler", "flowalign.samplers", [])
    points = [
        EntryPoint("mine", "flowalign.samplers:FlowSDE", "flowalign.samplers"),
        EntryPoint("broken", "nowhere:Nothing", "flowalign.samplers"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert table.names() == ["broken", "mine"]
    assert table.get("mine") is FlowSDE
    with pytest.raises(ConfigError, match="'broken' of nowhere cannot be imported"):
        table.get("broken")
