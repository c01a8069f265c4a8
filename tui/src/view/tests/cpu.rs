//! The CPU tab.

use trace::event::{CpuSample, Received, StackSample};
use trace::{FrameId, ThreadId};

use super::*;

#[test]
fn the_cpu_tab_appears_with_thread_samples() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Cpu)]);
    assert_eq!(fixture.ui.tab, Tab::Overview, "there is no such tab before there is something on it");
    let threads = [
        ("scheduler", 4_000, 99, Some(0), None),
        ("tokenizer", 4_321, 61, Some(33), Some(2)),
        ("tokenizer", 4_329, 4, None, None),
        ("detokenizer", 4_330, 40, Some(45), Some(38)),
    ];
    for tenth in 130..230 {
        for &(role, tid, on_ms, wait_ms, throttled_ms) in &threads {
            let sample = CpuSample {
                name: "python3",
                wait_ns: wait_ms.map(|ms: u64| ms * MS),
                throttled_ns: throttled_ms.map(|ms: u64| ms * MS),
                ..CpuSample::new(ThreadId { pid: 4_000, tid }, role, 100 * MS, on_ms * MS)
            };
            fixture.scene.emit(tenth * 100 * MS, What::Cpu(sample));
        }
    }
    let (id, by) = (FrameId::new(HopId(0), 0, 150), Some(ThreadId { pid: 4_000, tid: 4_321 }));
    let received = Received { by, ..Received::new(id) };
    fixture.scene.emit(23_000 * MS, What::Received(received));
    fixture.refresh();
    fixture.snapshot("overview_cpu");
    fixture.press(&[Action::OpenTab(Tab::Cpu)]);
    fixture.snapshot("cpu");
    for (function, own, total) in [("_handle_batch_output", 61, 80), ("recv_pyobj", 20, 22), ("generate", 4, 4)] {
        let sample = StackSample {
            thread: ThreadId { pid: 4_000, tid: 4_321 },
            role: "tokenizer",
            function,
            file: "managers/tokenizer_manager.py",
            interval_ns: 1_000 * MS,
            samples: 100,
            total,
            own,
            gil: Some(own),
        };
        fixture.scene.emit(23_500 * MS, What::Stack(sample));
    }
    fixture.refresh();
    fixture.snapshot("cpu_functions");
}
