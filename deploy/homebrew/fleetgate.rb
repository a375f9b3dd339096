# The formula of the tap: brew tap fleetgate/tap && brew install fleetgate (docs/deploy.md)
#
# pip installs the packages, as constraints.txt pins them. That is for a tap: homebrew-core wants a resource for each.
class Fleetgate < Formula
  include Language::Python::Virtualenv

  desc "Admission control for fleets of AI agents: caps, one queue, leases"
  homepage "https://github.com/fleetgate/fleetgate"
  url "https://github.com/fleetgate/fleetgate.git", tag: "v0.1.0"
  license "Apache-2.0"
  head "https://github.com/fleetgate/fleetgate.git", branch: "main"

  depends_on "python@3.13"

  def install
    virtualenv_create(libexec, "python3.13", without_pip: false)
    system libexec/"bin/python", "-m", "pip", "install", "--constraint", "constraints.txt", ".[serve]"
    bin.install_symlink libexec/"bin/fleetgate"
    generate_completions_from_executable(bin/"fleetgate", shell_parameter_format: :click)
  end

  service do
    run [opt_bin/"fleetgate", "serve"]
    keep_alive successful_exit: false
    log_path var/"log/fleetgate.log"
    error_log_path var/"log/fleetgate.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/fleetgate --version")
    assert_equal "ran\n", shell_output("FLEETGATE_HOME=#{testpath} #{bin}/fleetgate run -- echo ran")
  end
end
