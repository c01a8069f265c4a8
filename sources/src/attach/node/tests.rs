use probe_user::Loss;

use super::super::engine_search::tests::titled;
use super::*;

fn node(max_runs: EngineLimit) -> Node {
    let discovery = DiscoveryThread::start(None, &[], None).expect("a thread");
    Node::new(ProbeOptions::default(), discovery, None, max_runs)
}

fn found(name: &str, pid: u32) -> FoundEngine {
    found_in(1, name, "", pid)
}

/// An engine in this network namespace, with this model.
fn found_in(network_namespace: u64, name: &str, model: &str, pid: u32) -> FoundEngine {
    let traits = EngineTraits::for_test(name, Some(model).filter(|model| !model.is_empty()), network_namespace);
    FoundEngine { traits, engine: titled(pid, Vec::new()), ports: BTreeMap::new(), tokenizer: None }
}

/// Adds a run of the engine, which it watches.
fn watch(node: &mut Node, found: &FoundEngine) -> RunId {
    let run = node.add_run(Some(&found.traits));
    node.add_receiver_for_engine(run, &found.engine);
    node.set_waiting(run, false);
    run
}

fn end(node: &mut Node, run: RunId) {
    node.release_run(run);
    node.set_waiting(run, true);
}

fn taken_pid(node: &mut Node, run: RunId) -> Option<u32> {
    node.take_next_engine_of_run(run).map(|found| found.engine.processes[0].id.pid)
}

fn next_name(node: &mut Node) -> Option<String> {
    node.next_new_engine().map(|engine| engine.name)
}

#[test]
fn a_restarted_engine_continues_its_run_and_another_one_gets_its_own() {
    let mut node = node(EngineLimit::default());
    let first = watch(&mut node, &found("sglang:30000", 1));
    let second = watch(&mut node, &found("vllm:8000", 2));

    // The same port in another network namespace, while the first engine runs.
    node.discovery.found = vec![found_in(2, "sglang:30000", "", 3), found("sglang:30000", 1)];
    let engine = node.next_new_engine().expect("a further engine");
    let third = node.add_run(Some(&engine));
    assert_eq!(node.name_of(third), "sglang:30000-2");
    assert_eq!(
        (node.name_shared_with_other_engine(third), node.name_shared_with_other_engine(first)),
        (Some("sglang:30000"), None)
    );
    assert_eq!(taken_pid(&mut node, third), Some(3));
    assert!(node.discovery.found.is_empty(), "the first is watched");

    end(&mut node, second);
    node.discovery.found = vec![found("vllm:8000", 4)];
    assert!(node.has_next_engine_for(second) && !node.has_next_engine_for(first));
    assert_eq!(next_name(&mut node), None);
    assert_eq!(taken_pid(&mut node, second), Some(4));
}

#[test]
fn engines_with_equal_names_have_runs_of_different_names_from_the_start() {
    let mut node = node(EngineLimit::default());
    let runs = [1, 2, 3].map(|pid| watch(&mut node, &found_in(u64::from(pid), "sglang:30000", "", pid)));
    let names = runs.map(|run| node.name_of(run).to_owned());
    assert_eq!(names, ["sglang:30000", "sglang:30000-2", "sglang:30000-3"]);
    let [first, second] = ["sglang:qwen_2", "sglang:qwen-2"].map(|name| watch(&mut node, &found(name, 4)));
    assert_eq!([node.name_of(first), node.name_of(second)], ["sglang:qwen_2", "sglang:qwen-2-2"], "one file name");
}

#[test]
fn a_run_has_the_numbered_name_by_which_its_engine_was_selected() {
    let mut node = node(EngineLimit::default());
    let selected = |pid: u32| {
        let mut engine = found_in(2, "sglang:30000", "qwen", pid);
        engine.traits.unique_name = "sglang:30000-2".to_owned();
        engine
    };
    let run = watch(&mut node, &selected(2));
    assert_eq!((node.name_of(run), node.name_shared_with_other_engine(run)), ("sglang:30000-2", Some("sglang:30000")));
    end(&mut node, run);
    node.discovery.found = vec![selected(3)];
    assert_eq!((taken_pid(&mut node, run), node.name_of(run)), (Some(3), "sglang:30000-2"));
}

fn lost(count: u64) -> String {
    format!("{:?}", Observation::Lost { cause: Loss::RingFull, count })
}

#[test]
fn a_full_ring_is_counted_once_for_all_engines() {
    let mut node = node(EngineLimit::default());
    let runs = [1, 2, 3].map(|pid| watch(&mut node, &found(&format!("sglang:3000{pid}"), pid)));
    let waiting = node.add_run(None);
    let mut counts = ReadCounts::default();
    let Node { runs: entries, receivers, .. } = &mut node;
    let mut own = Vec::new();
    let emit: &mut dyn FnMut(&Observation<'_>) = &mut |observation| own.push(format!("{observation:?}"));
    let mut delivery = Delivery { run: runs[0], runs: entries, receivers, counts: &mut counts, emit };
    for pid in [2, 1, 2, 2] {
        delivery.deliver_observation(&Observation::Exited { pid });
    }
    delivery.deliver_observation(&Observation::Lost { cause: Loss::RingFull, count: 100 });
    assert_eq!(own[1..], [lost(25)]);
    let last_of = [runs[1], runs[2], waiting].map(|run| {
        let mut last = String::new();
        let deadline = Instant::now() + Duration::from_mins(1);
        let entry = node.runs.get_mut(&run).expect("a run");
        entry.inbox.drain_until_and_count(deadline, &mut |observation| last = format!("{observation:?}"));
        last
    });
    assert_eq!(last_of, [lost(75), lost(0), String::new()]);
}

#[test]
fn an_engine_that_shares_a_process_with_a_watched_one_is_named_and_gets_a_run_after_it() {
    let mut node = node(EngineLimit::default());
    let first = watch(&mut node, &found_in(1, "sglang:30000", "qwen", 1));
    let other = watch(&mut node, &found("vllm:8000", 9));
    let with_shared_process = |name: &str, model: &str, pid: u32| {
        let mut engine = found_in(1, name, model, pid);
        engine.engine.processes.extend(titled(1, Vec::new()).processes);
        engine
    };
    node.discovery.found = vec![with_shared_process("sglang:30001", "llama", 2)];
    assert_eq!(next_name(&mut node), None);
    let notes = |node: &Node, run| -> Vec<(String, u32)> {
        node.names_and_shared_pids_of_unwatched_engines(run).map(|(name, pid)| (name.to_owned(), pid)).collect()
    };
    assert_eq!((notes(&node, first), notes(&node, other)), (vec![("sglang:30001".to_owned(), 1)], Vec::new()));
    end(&mut node, first);
    assert_eq!(next_name(&mut node).as_deref(), Some("sglang:30001"));

    // The watched engine itself, found again with a further process.
    let first = watch(&mut node, &found_in(1, "sglang:30000", "qwen", 1));
    node.discovery.found = vec![with_shared_process("sglang:30000", "qwen", 2)];
    assert_eq!(next_name(&mut node), None);
    assert!(node.discovery.found.is_empty() && notes(&node, first).is_empty());
}

#[test]
fn a_process_of_two_engines_is_known_as_one_of_the_first() {
    let mut node = node(EngineLimit::default());
    let first = watch(&mut node, &found("sglang:30000", 1));
    let second = watch(&mut node, &found("sglang:30001", 2));
    let shared = titled(1, Vec::new()).processes[0].id;
    assert_eq!(node.name_of_other_run_watching(second, shared), Some("sglang:30000"));
    assert_eq!(node.name_of_other_run_watching(first, shared), None);
    // The pid of another process, later.
    assert_eq!(node.name_of_other_run_watching(second, ProcessId { start_time: 9, ..shared }), None);
}

#[test]
fn a_new_container_continues_the_run_of_its_model_only() {
    let mut node = node(EngineLimit::default());
    let first = watch(&mut node, &found_in(1, "sglang:30000", "qwen", 1));
    let second = watch(&mut node, &found_in(2, "sglang:30000", "llama", 2));
    end(&mut node, first);
    end(&mut node, second);
    node.discovery.found = vec![found_in(3, "sglang:30000", "mistral", 3)];
    assert_eq!(next_name(&mut node).as_deref(), Some("sglang:30000"), "another model is another engine");
    node.discovery.found = vec![found_in(4, "sglang:30000", "llama", 4)];
    assert_eq!((taken_pid(&mut node, first), taken_pid(&mut node, second)), (None, Some(4)));
    node.set_waiting(second, false);

    // Of two with one model, the restarted one is not known.
    let third = watch(&mut node, &found_in(5, "sglang:30000", "qwen", 5));
    end(&mut node, third);
    node.discovery.found = vec![found_in(6, "sglang:30000", "qwen", 6)];
    assert_eq!(next_name(&mut node).as_deref(), Some("sglang:30000"));
    node.discovery.found = vec![found_in(5, "sglang:30000", "qwen", 7)];
    assert_eq!((taken_pid(&mut node, first), taken_pid(&mut node, third)), (None, Some(7)));
}

#[test]
fn the_only_run_continues_with_any_engine_that_is_not_another_one() {
    let mut node = node(EngineLimit::default());
    let run = node.add_run(None);
    node.discovery.found = vec![found("sglang:30000", 1)];
    assert!(node.take_next_engine_of_run(run).is_some(), "it had none");
    // Its port and model are not known yet.
    node.discovery.found = vec![found("sglang (pid 2)", 2)];
    assert!(node.take_next_engine_of_run(run).is_some());
    let first = found_in(1, "sglang:30000", "qwen", 3);
    node.discovery.found = vec![first];
    assert!(node.take_next_engine_of_run(run).is_some());
    node.discovery.found = vec![found_in(2, "sglang:30000", "llama", 4)];
    assert!(node.take_next_engine_of_run(run).is_none(), "it gets a run of its own");
    assert_eq!(next_name(&mut node).as_deref(), Some("sglang:30000"));
}

#[test]
fn engines_beyond_the_limit_are_named() {
    let mut node = node(EngineLimit(2));
    watch(&mut node, &found("sglang:30000", 1));
    node.discovery.found = vec![found("vllm:8000", 2)];
    assert!(!node.is_full() && node.describe_unwatched_engines().is_none(), "it will get a run");
    let second = watch(&mut node, &found("vllm:8000", 2));
    node.discovery.found = (1..=9).map(|port| found(&format!("vllm:900{port}"), 10 + port)).collect();
    let note = node.describe_unwatched_engines().expect("engines without a run");
    assert!(note.starts_with("engine: limit of 2 reached (--max-engines), 9 not watched: vllm:9001, "), "{note}");
    assert!(note.ends_with("vllm:9008, ..."), "{note}");
    end(&mut node, second);
    node.discovery.found = vec![found("vllm:8000", 3)];
    assert_eq!(node.describe_unwatched_engines(), None, "a run waits for it");
}
