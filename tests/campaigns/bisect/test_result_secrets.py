from loadchaos.campaigns.replay.servers import from_launch, result_redactor


def test_result_redactor_hides_secrets_of_flags_environment_and_addresses() -> None:
    hide = result_redactor(
        from_launch("KEY_OF_HUB=abcdef123456 serve gated/M --hf-token hf_0123456789abcdef --port 8000")
    )
    shown = hide.text(
        "needed: --hf-token hf_0123456789abcdef; KEY_OF_HUB=abcdef123456; https://bob:s3cr3tT0ken99@host/x"
    )
    assert not any(secret in shown for secret in ("hf_0123456789abcdef", "abcdef123456", "s3cr3tT0ken99"))
