//! CPython must accept every recorded pickle that tokengap accepts, and read the same requests from it.

use std::path::Path;
use std::process::Command;

#[test]
fn cpython_reads_the_recorded_messages_as_we_do() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = Command::new("python3")
        .arg(root.join("fuzz/agree.py"))
        .arg(env!("CARGO_BIN_EXE_tokengap"))
        .arg(root.join("zmq-tap/fixtures/messages"))
        .output();
    let Ok(out) = out else {
        eprintln!("SKIPPED: there is no python3 to compare with");
        return;
    };
    let stdout = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{stdout}{}", String::from_utf8_lossy(&out.stderr));
    assert!(stdout.contains("0 of them with invalid strings and 0 with rejected calls"), "{stdout}");
}
