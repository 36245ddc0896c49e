"""What `cmake --install` makes can be put anywhere: it brings its libraries and runs from there."""
import pathlib
import shutil
import subprocess

import harness

OF_THE_MACHINE = ("linux-vdso", "ld-linux", "libc.", "libm.", "libpthread.", "librt.", "libdl.", "libresolv.",
                  "libcuda.", "libnccl.")


class Install(harness.Case):
    def test_an_installed_folder_moved_elsewhere_uses_its_own_libraries(self):
        build = pathlib.Path(harness.options.warproll).parent
        subprocess.run(["cmake", "--install", build, "--prefix", self.folder / "here"], check=True,
                       capture_output=True, timeout=120)
        there = self.folder / "there" / "deep"
        there.parent.mkdir()
        shutil.move(self.folder / "here", there)
        warproll = there / "bin" / "warproll"
        done = subprocess.run([warproll, "generate", "--checkpoint", harness.ARITH[3], "--prompt", "123+456="],
                              capture_output=True, text=True, timeout=120, env={})
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "579"), done.stderr)
        libraries = subprocess.run(["ldd", warproll], capture_output=True, text=True, check=True, timeout=60).stdout
        for line in libraries.splitlines():
            name, _, found = line.strip().partition(" => ")
            if not pathlib.Path(name.split()[0]).name.startswith(OF_THE_MACHINE):
                self.assertIn(str(there / "lib"), str(pathlib.Path(found.split(" (")[0]).resolve()), line)
        for config in ("worker", "trainer"):
            self.assertTrue((there / "configs" / f"{config}.yaml").is_file())


if __name__ == "__main__":
    harness.main()
