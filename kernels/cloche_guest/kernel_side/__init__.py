"""Code that runs *inside* a Python kernel, with the interpreter and the ipykernel of the user's environment.

It must not import anything of Cloche or of the guest's environment: `launch.py` loads this directory as a package
named ``cloche_kernel``, wherever it lies. It changes ipykernel only where a service needs other behaviour than a
notebook; each place says why.
"""
