"""Mounts a FUSE file system at DIR that never answers. usage: stalled_file.py DIR. Prints "mounted"."""
import ctypes, os, sys, time

libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"stalled", sys.argv[1].encode(), b"fuse", 0, options):
    print("cannot mount:", os.strerror(ctypes.get_errno()), flush=True)
    sys.exit(1)
print("mounted", flush=True)
time.sleep(150)
