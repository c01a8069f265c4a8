//! Default seccomp profile of Debian's container tools, as a runtime applies it to a set of capabilities.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

const PROFILE: &str = "/usr/share/containers/seccomp.json";

/// The profile's rules for these capabilities on this machine.
pub(crate) fn profile(caps: &[String]) -> Result<Value> {
    let text = fs::read_to_string(PROFILE).with_context(|| format!("read {PROFILE}"))?;
    resolve(&serde_json::from_str(&text)?, caps)
}

fn resolve(profile: &Value, caps: &[String]) -> Result<Value> {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let names = |rule: &Value, filter: &str, what: &str| -> Vec<String> {
        let list = rule[filter][what].as_array().map_or(&[][..], Vec::as_slice);
        list.iter()
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect()
    };
    let rules = profile["syscalls"].as_array().context("the profile has no syscalls")?;
    let applies = |rule: &&Value| {
        let arches = names(rule, "includes", "arches");
        (arches.is_empty() || arches.iter().any(|name| name == arch))
            && names(rule, "includes", "caps").iter().all(|cap| caps.contains(cap))
            && !names(rule, "excludes", "caps").iter().any(|cap| caps.contains(cap))
            && !names(rule, "excludes", "arches").iter().any(|name| name == arch)
    };
    let syscalls: Vec<Value> = rules
        .iter()
        .filter(applies)
        .map(|rule| {
            let mut kept = json!({"names": rule["names"], "action": rule["action"]});
            for name in ["args", "errnoRet"] {
                if !rule[name].is_null() {
                    kept[name] = rule[name].clone();
                }
            }
            kept
        })
        .collect();
    Ok(json!({
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "syscalls": syscalls,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_for_a_capability_applies_with_it_and_its_opposite_without() {
        let profile = json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "syscalls": [
            {"names": ["read"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["bpf"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
        ]});
        let bpf = |caps: &[String]| {
            let rules = resolve(&profile, caps).expect("it resolves")["syscalls"].clone();
            assert_eq!(rules.as_array().map(Vec::len), Some(2));
            rules[1]["action"].clone()
        };
        assert_eq!(bpf(&["CAP_SYS_ADMIN".into()]), "SCMP_ACT_ALLOW");
        assert_eq!(bpf(&["CAP_BPF".into()]), "SCMP_ACT_ERRNO");
    }
}
