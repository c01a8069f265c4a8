//! A process that root started and that takes another user: it has the permissions of this user only.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use confine::{Account, Capabilities, Plan, Work};

/// Environment variable that turns this test program into the confined process. It names the folder of the test.
const CONFINED: &str = "TOKENGAP_TEST_ACCOUNT_IN";
const ACCOUNT: Account = Account { user: 61_000, group: 61_001 };

#[test]
fn root_takes_the_user_of_a_plan_and_keeps_no_access_to_files() {
    if let Some(folder) = std::env::var_os(CONFINED) {
        return check_rights(Path::new(&folder));
    }
    if confine::can_change_user() != Ok(true) {
        println!("SKIPPED: only root can take another user");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("set");
    fs::write(folder.path().join("private"), "precious").expect("written");
    fs::set_permissions(folder.path().join("private"), PermissionsExt::from_mode(0o600)).expect("set");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "root_takes_the_user_of_a_plan_and_keeps_no_access_to_files", "--test-threads=1"])
        .env(CONFINED, folder.path())
        .output()
        .expect("started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn check_rights(folder: &Path) {
    // Capabilities and users belong to threads, so the plan is applied in the only one that counts.
    let mut plan = Plan { account: Some(ACCOUNT), ..Plan::new(Work::Move) };
    plan.keep = Capabilities::DAC_OVERRIDE | Capabilities::KILL;
    plan.write.push(folder.to_owned());
    let outcome = plan.apply();
    assert_eq!(outcome.kept, Capabilities::KILL, "{outcome:?}");
    let status = fs::read_to_string("/proc/thread-self/status").expect("readable");
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
    assert_eq!(of("Uid:"), "61000\t61000\t61000\t61000");
    assert_eq!(of("Gid:"), "61001\t61001\t61001\t61001");
    assert_eq!(of("Groups:"), "");
    assert_eq!(fs::read(folder.join("private")).expect_err("root's").kind(), ErrorKind::PermissionDenied);
    assert_eq!(fs::write(folder.join("new"), "").expect_err("root's").kind(), ErrorKind::PermissionDenied);
}
