//! Tests with processes without a known title or command.

use adapter::discover::{Carries, Confidence, Role, RoleSource};
use engines::sglang::discover::role::{DETOKENIZER, SCHEDULER, TOKENIZER};
use probe_user::discover::Engine;

use crate::peers::{Peer, until, watcher};
use crate::{base, ports};

fn roles(engine: &Engine) -> Vec<(u32, Role, RoleSource)> {
    engine.processes.iter().map(|p| (p.id.pid, p.role, p.role_source)).collect()
}

#[test]
fn a_pair_is_a_scheduler_and_a_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    for endpoint in [format!("{}one", base(folder.path())), format!("tcp://127.0.0.1:{}", ports())] {
        let Some(pull) = Peer::start(&["pull", &endpoint]) else { return };
        let Some(push) = Peer::start(&["push", &endpoint]) else { return };
        let engine = until(&mut watcher(&[]), |t| t.engine_of(push.pid()).cloned());
        let expected = [(push.pid(), SCHEDULER, RoleSource::Sockets), (pull.pid(), TOKENIZER, RoleSource::Sockets)];
        assert_eq!(roles(&engine), expected);
        assert!(!engine.is_named());
        let [hop] = engine.hops.as_slice() else { panic!("one hop: {engine}") };
        assert_eq!((hop.carries, hop.confidence), (Carries::Output, Confidence::Inferred));
        assert_eq!((hop.from.unwrap().pid, hop.to.unwrap().pid), (push.pid(), pull.pid()));
        assert_eq!(hop.endpoint, endpoint);
        assert!(engine.releases.is_empty() && engine.settings.codec.is_none(), "the release is unknown");
    }
}

#[test]
fn three_senders_and_a_detokenizer_in_between() {
    let folder = tempfile::tempdir().unwrap();
    let (detokenizer, tokenizer) = (format!("{}detok", base(folder.path())), format!("{}tok", base(folder.path())));
    let Some(last) = Peer::start(&["pull", &tokenizer]) else { return };
    let Some(middle) = Peer::start(&["relay", &detokenizer, &tokenizer]) else { return };
    let senders: Vec<Peer> = (0..3).filter_map(|_| Peer::start(&["push", &detokenizer])).collect();
    let complete = |e: &&Engine| e.hops.len() == 4;
    let engine = until(&mut watcher(&[]), |t| t.engine_of(last.pid()).filter(complete).cloned());
    let mut expected: Vec<_> = senders.iter().map(|s| (s.pid(), SCHEDULER, RoleSource::Sockets)).collect();
    expected.sort_unstable();
    expected.push((middle.pid(), DETOKENIZER, RoleSource::Sockets));
    expected.push((last.pid(), TOKENIZER, RoleSource::Sockets));
    assert_eq!(roles(&engine), expected);
}

#[test]
fn a_role_set_by_hand_wins_and_determines_its_neighbour() {
    let endpoint = format!("tcp://127.0.0.1:{}", ports());
    let Some(pull) = Peer::start(&["pull", &endpoint]) else { return };
    let Some(push) = Peer::start(&["push", &endpoint]) else { return };
    let mut watcher = watcher(&[format!("{}=detokenizer", push.pid())]);
    let complete = |e: &&Engine| !e.hops.is_empty();
    let engine = until(&mut watcher, |t| t.engine_of(push.pid()).filter(complete).cloned());
    let expected = [(push.pid(), DETOKENIZER, RoleSource::Hand), (pull.pid(), TOKENIZER, RoleSource::Sockets)];
    assert_eq!(roles(&engine), expected);
    assert_eq!(engine.hops[0].ends().to_string(), "detokenizer->tokenizer");
    assert!(engine.is_named());
}

#[test]
fn a_given_pid_that_is_missing_or_unconnected_is_reported() {
    use engines::DISCOVERED;
    use probe_user::discover::{BlindSpot, DiscoverError, DiscoverOptions, RoleSpec, Watcher};
    let named = |spec: String| DiscoverOptions {
        named: vec![RoleSpec::parse(&spec, DISCOVERED).unwrap()],
        ..DiscoverOptions::new(DISCOVERED)
    };
    let error = Watcher::new(named(format!("{}", u32::MAX))).unwrap_err();
    assert!(matches!(error, DiscoverError::NoSuchProcess { pid: u32::MAX, .. }), "{error}");

    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let watcher = Watcher::new(named(child.id().to_string())).unwrap();
    assert!(
        watcher
            .topology()
            .blind_spots
            .iter()
            .any(|blind| matches!(blind, BlindSpot::NoRole { pid, .. } if *pid == child.id())),
        "{}",
        watcher.topology()
    );
    child.kill().unwrap();
    child.wait().unwrap();
}
